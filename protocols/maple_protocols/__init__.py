"""Wire protocols: JSON bodies to neutral requests, turn events back to the wire. No I/O."""
