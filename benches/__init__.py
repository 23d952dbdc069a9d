"""Speed: peers, end to end and by kernel. Scripts, not tests."""
