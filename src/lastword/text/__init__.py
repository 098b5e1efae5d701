"""From words to a packed forest: items, their token ids, and the prefixes that they share."""
