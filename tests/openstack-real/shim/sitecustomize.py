"""Python imports this at the start of every service."""
import gc

# Objects are created and freed with each request, and the garbage collection after every 700 takes a tenth of the CPU time.
gc.set_threshold(20_000, 20, 20)
