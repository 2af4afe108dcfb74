"""The engines of one service on arrays: the loop, the plugin and the queue as compiled functions."""
