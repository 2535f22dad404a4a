/*
 * One COPY FROM: see README.md. Only pgsluice.c calls these functions: first
 * sluice_why_not(), and then sluice_copy() if there is no reason against it.
 */
#ifndef PGSLUICE_COPY_H
#define PGSLUICE_COPY_H

#include "rejects/rejects.h"
#include "workers/workers.h"
/* decide.c */
extern const char *sluice_why_not(SluiceStatement *s);

/* copy.c */
extern uint64 sluice_copy(SluiceStatement *s);

#endif							/* PGSLUICE_COPY_H */
