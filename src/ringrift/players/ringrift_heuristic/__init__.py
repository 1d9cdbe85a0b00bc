"""A player for RingRift that judges positions by what the rules reward, and looks a little ahead."""
