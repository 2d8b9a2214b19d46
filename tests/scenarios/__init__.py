"""Stories in text files over real cores and rigs; `language.py` says how they are written."""
