"""How far plans are from the best ones, whether they are exact, and what they take here, side by side."""
