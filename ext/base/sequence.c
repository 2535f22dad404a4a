/*
 * Values of a sequence for many rows at once.
 *
 * nextval itself draws the first value and the last one: it checks
 * permissions, takes a new sequence into use, and sets currval() and
 * lastval(). The values in between are reserved in one step under the lock of
 * the sequence's page. The page is left and logged as that many calls of
 * nextval would have done it (nextval_internal of
 * src/backend/commands/sequence.c).
 *
 * THE INVARIANT OF A SEQUENCE.  A value that a committed transaction has used
 * is never given out again, not even after a crash. PostgreSQL logs a value
 * ahead of those in use (LOGGED_AHEAD), and recovery continues after it.
 * advance() keeps this rule. If the values logged ahead do not cover the
 * block, it logs a new value beyond the block before the page can be written
 * (one critical section, the page's LSN). The transaction then has an ID, so
 * that its commit waits for that record.
 *
 * WHAT OTHERS SEE.  The values of a block are consecutive, as if this session
 * had called nextval that many times and no other session had called it in
 * between. That is a possible order of events. If an attempt fails, its
 * reserved values that were not used are lost, as nextval's are after a
 * rollback.
 *
 * BOUNDS.  A block is taken only if it, and the values logged ahead, lie
 * between the sequence's bounds. Otherwise values are drawn one by one, so
 * that nextval does CYCLE or raises the error at the end. A sequence with a
 * cache is left to nextval entirely.
 *
 * An ALTER SEQUENCE of another session cannot interfere: nextval keeps a lock
 * on the sequence until the end of the transaction, and the definition is
 * looked up again under that lock.
 */
#include "base/pgsluice.h"

#include "access/relation.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xloginsert.h"
#include "catalog/pg_sequence.h"
#include "commands/sequence.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/syscache.h"

/* SEQ_LOG_VALS of sequence.c: values that are logged ahead of those in use. */
#define LOGGED_AHEAD 32

/* Looks up the definition. False: values have to be drawn one by one. */
static bool
look_up(SluiceSequence *serial)
{
	HeapTuple	tuple = SearchSysCache1(SEQRELID, ObjectIdGetDatum(serial->sequence));
	Form_pg_sequence form;
	bool		caches;

	if (!HeapTupleIsValid(tuple))
		return false;			/* nextval says what is wrong */
	form = (Form_pg_sequence) GETSTRUCT(tuple);
	serial->step = form->seqincrement;
	serial->min = form->seqmin;
	serial->max = form->seqmax;
	/*
	 * Only nextval maintains a session's cache. With a cache, it reads the
	 * sequence seldom enough.
	 */
	caches = form->seqcache > 1;
	ReleaseSysCache(tuple);
	return !caches;
}

/* `blocks`: no function can observe when values are drawn. */
void
sluice_sequence_open(SluiceSequence *serial, bool blocks)
{
	serial->blocks = blocks && sluice_allowed.sequence_blocks && OidIsValid(serial->sequence) && look_up(serial);
}

/*
 * Whether `count` values, and the values logged ahead of them, lie between
 * `last` and the bound.
 */
static bool
fits(const SluiceSequence *serial, int64 last, uint64 count)
{
	uint64		step = serial->step > 0 ? (uint64) serial->step : 0 - (uint64) serial->step;
	uint64		room = serial->step > 0 ? (uint64) serial->max - (uint64) last :
		(uint64) last - (uint64) serial->min;

	return last >= serial->min && last <= serial->max &&
		room / step >= count + LOGGED_AHEAD;
}

/* Changes the page as `count` calls of nextval would. The page is locked. */
static void
advance(Relation rel, Buffer buffer, HeapTuple tuple, int64 count, int64 step)
{
	Form_pg_sequence_data seq = (Form_pg_sequence_data) GETSTRUCT(tuple);
	Page		page = BufferGetPage(buffer);
	/* Values that were logged before a checkpoint no longer count. */
	int64		logged = PageGetLSN(page) <= GetRedoRecPtr() ? 0 : seq->log_cnt;
	int64		last = seq->last_value + count * step;
	bool		log = logged < count;

	if (log)
		logged = LOGGED_AHEAD - (count - logged - 1) % (LOGGED_AHEAD + 1);
	else
		logged -= count;
	/* With an ID, the commit waits for the WAL. */
	if (log && RelationNeedsWAL(rel))
		GetTopTransactionId();

	/* Recovery must continue after all values of the block. */
	Assert(logged >= 0 && logged <= LOGGED_AHEAD);
	START_CRIT_SECTION();
	MarkBufferDirty(buffer);
	if (log && RelationNeedsWAL(rel))
	{
		xl_seq_rec	record;
		XLogRecPtr	lsn;

		XLogBeginInsert();
		XLogRegisterBuffer(0, buffer, REGBUF_WILL_INIT);
		/* Recovery continues after the values logged ahead. */
		seq->last_value = last + logged * step;
		seq->is_called = true;
		seq->log_cnt = 0;
		compat_set_locator(&record, rel);
		XLogRegisterData((char *) &record, sizeof(record));
		XLogRegisterData((char *) tuple->t_data, tuple->t_len);
		lsn = XLogInsert(RM_SEQ_ID, XLOG_SEQ_LOG);
		PageSetLSN(page, lsn);
	}
	seq->last_value = last;
	seq->is_called = true;
	seq->log_cnt = logged;
	END_CRIT_SECTION();
}

/* Reserves the next values, unless they would be too close to a bound. */
static void
reserve(SluiceSequence *serial, int64 count)
{
	Relation	rel;
	Buffer		buffer;
	HeapTupleData tuple;
	Form_pg_sequence_data seq;
	Page		page;
	ItemId		item;

	/*
	 * nextval holds its lock to the end of the transaction. Before it took the
	 * lock, ALTER SEQUENCE could change the definition.
	 */
	serial->blocks = look_up(serial);
	if (!serial->blocks)
		return;
	rel = relation_open(serial->sequence, NoLock);
	buffer = ReadBuffer(rel, 0);
	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	page = BufferGetPage(buffer);
	item = PageGetItemId(page, FirstOffsetNumber);
	tuple.t_data = (HeapTupleHeader) PageGetItem(page, item);
	tuple.t_len = ItemIdGetLength(item);
	seq = (Form_pg_sequence_data) GETSTRUCT(&tuple);
	if (seq->is_called && fits(serial, seq->last_value, (uint64) count))
	{
		serial->next = seq->last_value + serial->step;
		serial->left = count;
		advance(rel, buffer, &tuple, count, serial->step);
	}
	UnlockReleaseBuffer(buffer);
	relation_close(rel, NoLock);
}

/* `count` rows are about to need a value each. */
void
sluice_sequence_expect(SluiceSequence *serial, int64 count)
{
	/*
	 * If records are rejected, a failed attempt leaves reserved values unused.
	 */
	serial->left = 0;
	serial->expected = serial->blocks ? count : 0;
}

/*
 * The next value. The first and the last of the expected values come from
 * nextval.
 */
static int64
next_value(SluiceSequence *serial)
{
	int64		value;

	serial->expected--;
	if (serial->left > 0)
	{
		value = serial->next;
		/* Does not overflow: LOGGED_AHEAD more values fit before the bound. */
		serial->next += serial->step;
		serial->left--;
		return value;
	}
	value = nextval_internal(serial->sequence, serial->check);
	if (serial->expected > 1)
		reserve(serial, serial->expected - 1);
	return value;
}

/* Writes the next value to the place that the core left for it. */
void
sluice_sequence_fill(SluiceSequence *serial, char *place)
{
	int64		value = next_value(serial);

	if (serial->len == 8)
		memcpy(place, &value, 8);
	else if (serial->len == 4)
	{
		int32		v = (int32) value;

		if ((int64) v != value)
			ereport(ERROR,
					(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
					 errmsg("integer out of range")));
		memcpy(place, &v, 4);
	}
	else
	{
		int16		v = (int16) value;

		if ((int64) v != value)
			ereport(ERROR,
					(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
					 errmsg("smallint out of range")));
		memcpy(place, &v, 2);
	}
}

/* Does the same if that is quick: the value is reserved and known to fit. */
bool
sluice_sequence_fill_reserved(SluiceSequence *serial, char *place)
{
	int32		value = (int32) serial->next;

	if (serial->left == 0 || serial->len != sizeof(value) || (int64) value != serial->next)
		return false;
	memcpy(place, &value, sizeof(value));
	serial->expected--;
	serial->next += serial->step;
	serial->left--;
	return true;
}
