"""Conversations: chat templates rendered to a prompt, and the session that keeps the history."""
