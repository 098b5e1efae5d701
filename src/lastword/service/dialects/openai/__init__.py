"""OpenAI's form: completions that are one of a list."""
