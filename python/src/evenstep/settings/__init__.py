"""The settings of a run: from the environment, the launcher and the user's arguments."""
