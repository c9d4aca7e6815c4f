"""Elastic runs: workers come and go while the process group lives. Experimental."""
