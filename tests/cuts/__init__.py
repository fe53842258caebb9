"""One scripted host, cut off or redirected at every frame of its session, and what must hold afterwards."""
