"""The parts of scripts/docs: stage pages, generate pages from code, check links, try the search."""
