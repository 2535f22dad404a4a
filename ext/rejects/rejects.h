/*
 * COPY's options rejects_to and on_duplicate: see README.md.
 *
 * sluice_rejects_open() sets load->accept_slice and load->ask_server. From
 * then on rows wait here until they are tried, and are in the table only after
 * sluice_rejects_flush().
 */
#ifndef PGSLUICE_REJECTS_H
#define PGSLUICE_REJECTS_H

#include "rows/rows.h"
/* rejects.c */
extern SluiceRejects *sluice_rejects_open(const SluiceStatement *s, SluiceLoad *load);
extern void sluice_rejects_flush(SluiceLoad *load);
extern void sluice_rejects_read_header(SluiceLoad *load);
extern void sluice_rejects_close(SluiceRejects *rejects);

/* duplicates.c */
extern Oid	sluice_duplicates_arbiter(const SluiceStatement *s);
extern Bitmapset *sluice_duplicates_read_columns(const SluiceStatement *s);
extern void sluice_duplicates_open(SluiceDuplicates *duplicates, const SluiceStatement *s);

#endif							/* PGSLUICE_REJECTS_H */
