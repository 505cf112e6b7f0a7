"""Stage 4: drivers, each of which builds the command that boots the agent confined."""
