"""Is a method worth it? `gradalign compare` trains several on paired seeds and says how far each is from the plain sum.

A *method* is what it changes of the config; a *job* is what one process does: the run of one method and seed, or one
trial of a method's tuning. The process that schedules jobs loads no TensorFlow. What is finished is a run folder, which
is never trained again, so that a comparison that was killed goes on with the same command.
"""
