"""How many bytes and seconds a pair costs on devices: the planner's model."""
