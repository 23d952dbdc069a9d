"""Other people's clients against a live server with a real model."""
