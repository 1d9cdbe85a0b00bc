"""RingRift: boards, a readable reference engine, and the compiled rules that agree with it."""
