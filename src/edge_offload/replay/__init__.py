"""The robot's half of the recording modes: record, predict, speculate, recover."""
