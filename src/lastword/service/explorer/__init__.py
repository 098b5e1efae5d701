"""The explorer: a page to ask a served model, see why it answers so, and look into records."""
