"""What comes next: steps of before, by the signature of their calls, and the trace graph of what will follow.

It is told of steps that are over and knows of no session: who asks for what it predicts, and takes it back, is outside.
"""
