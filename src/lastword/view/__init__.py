"""One answered item for the eye: its numbers, its reasons in sentences, its figure."""
