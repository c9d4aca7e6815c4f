"""Elastic runs: workers join and leave a running process group. Experimental."""
