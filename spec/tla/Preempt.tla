------------------------------ MODULE Preempt ------------------------------
(***************************************************************************)
(* Preemption: a running request that finds no room takes the blocks of    *)
(* another, which goes back to the queue, keeps its tokens, and starts     *)
(* again later, from a hit if there still is one.  Rows in flight of the   *)
(* victim still run.  A victim may have a row in the very batch that its   *)
(* blocks are needed for (vLLM's priority policy does this): that row is   *)
(* taken out of the batch, and takes back what it published.               *)
(***************************************************************************)
EXTENDS Pipeline

CONSTANT Policy   \* "priority": the victim is the last request that runs; "any": it may be any

\* Requests with small numbers come first.  A request may be its own victim.
Runs == {r \in Reqs : Running(r)}
Victims == IF Policy = "any" THEN Runs ELSE {Max(Runs)}
\* A request that has nothing to schedule (its last row is in flight) needs no room, even if it has none.
NeedsRoom(r) == /\ Running(r) /\ ~InOpen(r) /\ Len(open) < MaxRows
                /\ req[r].done < req[r].known /\ ~Fits(cache, r, req[r].done + 1)

Requeued(v) == [req[v] EXCEPT !.status = "waiting", !.done = 0]

PreemptIdle(r) == NeedsRoom(r) /\ \E v \in Victims : ~InOpen(v) /\ ~InFlight(v) /\ Stop(v, Requeued(v))
PreemptInFlight(r) == NeedsRoom(r) /\ \E v \in Victims : ~InOpen(v) /\ InFlight(v) /\ Stop(v, Requeued(v))
PreemptSameStep(r) == NeedsRoom(r) /\ \E v \in Victims : InOpen(v) /\ Stop(v, Requeued(v))
PreemptFor(r) == PreemptIdle(r) \/ PreemptInFlight(r) \/ PreemptSameStep(r)

NextPreempt == \/ Dispatch \/ Execute \/ ExecuteLast
               \/ \E r \in Reqs : Schedule(r) \/ PreemptFor(r)
SpecPreempt == Init /\ [][NextPreempt]_vars

\* With aborts as well.
NextAll == NextPreempt \/ \E r \in Reqs : AbortIdle(r) \/ AbortInFlight(r) \/ AbortBeforeDispatch(r)
SpecAll == Init /\ [][NextAll]_vars

\* Fair scheduling: who runs is served before who waits, in any order.  Then it is enough that something happens.
\* Without this order two requests can take each other's blocks for ever, and with it three can, if any request may
\* be the victim (the variants waiting-first and any-victim).
Served == \A r \in Reqs : Running(r) => InOpen(r) \/ req[r].done = req[r].known
NextFair == \/ Dispatch \/ Execute \/ ExecuteLast
            \/ \E r \in Reqs : (Running(r) \/ Served) /\ (Schedule(r) \/ PreemptFor(r))
FairPreempt == InitAnyOrder /\ [][NextFair \/ Rest]_vars /\ Happens
=============================================================================
