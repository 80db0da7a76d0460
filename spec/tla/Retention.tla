----------------------------- MODULE Retention -----------------------------
(***************************************************************************)
(* Keeping fewer states than there are boundaries.  Only every Interval-th *)
(* boundary's state is published, and a running request refers to at most  *)
(* Cap states behind the one that it still reads.  What it lets go may be  *)
(* given out at once: unpublished slots and those over the cap go to the   *)
(* head of the free list.  A state let go over the cap keeps its hash, so  *)
(* while there is room nothing is lost.  Rows in flight may still read or  *)
(* write slots that were let go; they run before any row that gets them.   *)
(***************************************************************************)
EXTENDS Pipeline

CONSTANT Cap

\* The columns of r that are not read any more, and which of them stay.
Behind(c, r) == {j \in 0 .. LastComputed(req[r].done) - 1 : At(c.table[r], j) # Null}
Stays(c, r) == LET kept == {j \in Behind(c, r) : Retained(j)}
               IN {j \in kept : Cardinality({i \in kept : i > j}) < Cap}
LetGo(c, r) == Behind(c, r) \ Stays(c, r)

\* Dropped slots in the order of their columns, but unpublished ones first.
InOrder(c, r, J) == LET q == [i \in 1 .. Len(c.table[r]) |-> IF i - 1 \in J THEN c.table[r][i] ELSE Null]
                    IN SelectSeq(q, LAMBDA s : s # Null)
FreedFirst(c, slots) ==
  LET freed == Freed(c, slots)
  IN SelectSeq(freed, LAMBDA s : c.hash[s] = NoHash) \o SelectSeq(freed, LAMBDA s : c.hash[s] # NoHash)
Trimmed(c, r) ==
  LET gone == InOrder(c, r, LetGo(c, r))
  IN [c EXCEPT !.table[r] = [i \in DOMAIN @ |-> IF i - 1 \in LetGo(c, r) THEN Null ELSE @[i]],
               !.refs = [s \in Slots |-> IF s \in Range(gone) THEN @[s] - 1 ELSE @[s]],
               !.free = FreedFirst(c, gone) \o @]

\* A request lets go of what it may before it takes more.
Goes(r) == /\ Running(r) /\ ~InOpen(r)
           /\ \E m \in Cuts : req[r].done + m <= req[r].known /\ Place(r, req[r].done, m, Trimmed(cache, r))
KeepsAll(r) == Running(r) /\ LetGo(cache, r) = {} /\ Goes(r)
LetsGo(r) == Running(r) /\ LetGo(cache, r) # {} /\ ~InFlight(r) /\ Goes(r)
LetsGoInFlight(r) == Running(r) /\ LetGo(cache, r) # {} /\ InFlight(r) /\ Goes(r)

ScheduleRetention(r) == \/ AdmitCold(r) \/ AdmitHitWritten(r) \/ AdmitHitInFlight(r) \/ AdmitHitOrphaned(r)
                        \/ KeepsAll(r) \/ LetsGo(r) \/ LetsGoInFlight(r)
NextRetention == \/ Dispatch \/ Execute \/ ExecuteLast
                 \/ \E r \in Reqs : \/ ScheduleRetention(r)
                                    \/ AbortIdle(r) \/ AbortInFlight(r) \/ AbortBeforeDispatch(r)
SpecRetention == Init /\ [][NextRetention]_vars

\* Alone in a pool that holds what it keeps, not all its columns, a request finishes.
NextAlone == Dispatch \/ Execute \/ ExecuteLast \/ \E r \in Reqs : ScheduleRetention(r)
FairRetention == Init /\ [][NextAlone \/ Rest]_vars /\ Happens

-----------------------------------------------------------------------------
\* Behind what its last row touched, a request holds at most Cap states, all of them retained ones.
CapHolds ==
  \A i \in DOMAIN open :
    LET row  == open[i]
        held == {j \in 0 .. LastComputed(row.n) - 1 : row.n > 0 /\ At(row.table, j) # Null}
    IN Cardinality(held) <= Cap /\ \A j \in held : Retained(j)
=============================================================================
