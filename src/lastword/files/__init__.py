"""Files that stand whole or not at all, and JSON that every reader takes."""
