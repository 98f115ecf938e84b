"""GradAlign against live PyTorch: an oracle written from the maths alone, and the tests that hold the two together."""
