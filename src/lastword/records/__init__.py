"""One answered item as it is stored: the record, its file, its run, its cell, its frame."""
