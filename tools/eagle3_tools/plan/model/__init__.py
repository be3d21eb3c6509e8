"""Model of the bytes and seconds that a pair costs on devices."""
