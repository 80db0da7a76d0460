------------------------------ MODULE Variants ------------------------------
(***************************************************************************)
(* What must fail.  Each operator here replaces one of the design's, by a  *)
(* line "Right <- Wrong" in TLC's configuration; spec/variants.py says     *)
(* which, under which bounds, which invariant must break, and where such a *)
(* mistake was seen.                                                       *)
(***************************************************************************)
EXTENDS Preempt, Retention

\* Contract: what a row touches.
DoubleBlock(n) == IF n = 0 THEN 0 ELSE Cdiv(n, 2 * B) - 1
OneTokenHasState(row) == Touches(row) /\ (row.n > 0 \/ row.m = 1)
ManyTokensAreFresh(row) == row.n > 0 /\ row.m = 1
FromReadColumn(n) == IF n = 0 THEN 0 ELSE Cdiv(n, B) - 1
OnlyLastColumn(row) == IF Touches(row) THEN {LastScheduled(row.n, row.m)} ELSE {}
OnlyFullColumns(row) == IF Touches(row) THEN FullColumns(row) ELSE {}
PaddingTouches(row) == TRUE

\* Cache: what is published, found, taken and given back.
PartialToo(row) == {j \in FirstScheduled(row.n) .. LastScheduled(row.n, row.m) : Retained(j)}
ByPrefillOnly(row) == {j \in FullColumns(row) : Retained(j) /\ row.m > 1}
SameStepToo(slots) == TRUE
AllTokens(r) == req[r].known \div B
StateAlone(c, r, k) == TRUE
Remembers(hash, new) == hash
StaysQueued(free, hit) == free
WhoeverRefers(c, slots) == slots
AllButFirst(table) == LET q == SelectSeq(Reverse(table), LAMBDA s : s # Null) IN SubSeq(q, 1, Len(q) - 1)

\* Pipeline and Preempt: what becomes of a stopped request's rows and hashes.
KeepsHash(c, r) == c
DropsRows(r) == [pipe |-> [i \in DOMAIN pipe |-> Others(pipe[i], r)], open |-> Others(open, r)]
Mine(batch, r) == SelectSeq(batch, LAMBDA row : row.req = r /\ row.live)
RunsLate(r) == [DropsRows(r) EXCEPT !.open = @ \o (IF pipe = <<>> THEN <<>> ELSE Orphan(Mine(Head(pipe), r), r))]
StaysInBatch(r) == [pipe |-> [i \in DOMAIN pipe |-> Orphan(pipe[i], r)], open |-> Orphan(open, r)]
WaitingToo == TRUE

\* Retention: what a running request lets go.
ReadColumnToo(c, r) == {j \in 0 .. LastComputed(req[r].done) : At(c.table[r], j) # Null}
OverTheCap(c, r) == {j \in Behind(c, r) : Retained(j)}
FreesShared(c, slots) == slots
=============================================================================
