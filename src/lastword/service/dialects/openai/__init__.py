"""OpenAI's API: completions that are one of a list of options, and Decisions."""
