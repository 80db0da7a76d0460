------------------------------ MODULE Pipeline ------------------------------
(***************************************************************************)
(* Scheduling ahead of execution: rows join the open batch, Dispatch sends *)
(* it into the pipe, Execute runs the oldest batch in flight.  A request   *)
(* may be aborted at any moment: its blocks are freed at once, its rows in *)
(* flight still run, in order, and a row that was not dispatched takes     *)
(* back what it published.                                                 *)
(*                                                                         *)
(* Actions are named by what happens at the same time, so that coverage    *)
(* shows which pairs were reached.                                         *)
(***************************************************************************)
EXTENDS Cache

CONSTANTS Depth,    \* batches in flight, at most
          Padding   \* whether batches carry a padding row with a stale table

\* Whether rows in flight will still write s, and for whom.
Writes(row, s) == s \in WriteSlots(row)
Written(s) == ~ \E i \in DOMAIN pipe : \E j \in DOMAIN pipe[i] : Writes(pipe[i][j], s)
UnderWay(s) == \E i \in DOMAIN pipe : \E j \in DOMAIN pipe[i] : Writes(pipe[i][j], s) /\ pipe[i][j].live
Orphaned(s) == ~Written(s) /\ ~UnderWay(s)

AdmitHitInFlight(r) == Waiting(r) /\ Lookup(cache, r) > 0 /\ Start(r, Lookup(cache, r), UnderWay)
AdmitHitOrphaned(r) == Waiting(r) /\ Lookup(cache, r) > 0 /\ Start(r, Lookup(cache, r), Orphaned)
AdmitHitWritten(r) == Waiting(r) /\ Lookup(cache, r) > 0 /\ Start(r, Lookup(cache, r), Written)

AdvanceIdle(r) == ~InFlight(r) /\ Continues(r)
AdvanceInFlight(r) == InFlight(r) /\ Continues(r)

\* A padding row carries the table of a row of its batch, with lengths of 0.
Pad(batch) == Append(batch, [Head(batch) EXCEPT !.req = NoReq, !.live = FALSE, !.n = 0, !.m = 0])
Dispatch == /\ open # <<>> /\ Len(pipe) < Depth
            /\ pipe' = Append(pipe, IF Padding THEN Pad(open) ELSE open) /\ open' = <<>>
            /\ req' = Sampled /\ UNCHANGED <<text, cache, content>>

\* What is left in a slot that nobody refers to, no hash names and no row in flight uses, is lost.
UsedNext(s) == \/ \E i \in DOMAIN pipe' : \E j \in DOMAIN pipe'[i] : Uses(pipe'[i][j], s)
               \/ \E j \in DOMAIN open' : Uses(open'[j], s)
Kept(c) == [s \in Slots |-> IF cache'.refs[s] = 0 /\ cache'.hash[s] = NoHash /\ ~UsedNext(s) THEN Garbage ELSE c[s]]

Executes == /\ cache' = Released(cache, Head(pipe)) /\ req' = Finished(req, Head(pipe))
            /\ pipe' = Tail(pipe) /\ UNCHANGED <<text, open>>
            /\ content' = Kept(After(content, Head(pipe)))
Execute == pipe # <<>> /\ Finishing(Head(pipe)) = {} /\ Executes
ExecuteLast == pipe # <<>> /\ Finishing(Head(pipe)) # {} /\ Executes

-----------------------------------------------------------------------------
(* The end of a request's life, or of a part of it.                        *)

RowOf(r) == CHOOSE row \in Range(open) : row.req = r
Others(batch, r) == SelectSeq(batch, LAMBDA row : row.req # r)
Orphan(batch, r) == [i \in DOMAIN batch |-> [batch[i] EXCEPT !.live = @ /\ batch[i].req # r]]

\* What becomes of a stopped request's rows: those in flight run, for nobody; one that was not sent never runs.
RowsLeft(r) == [pipe |-> [i \in DOMAIN pipe |-> Orphan(pipe[i], r)], open |-> Others(open, r)]
\* So that one must take back what it published.
Undo(c, r) == IF InOpen(r) THEN Retract(c, RowOf(r)) ELSE c

Stop(r, after) == /\ req' = [req EXCEPT ![r] = after]
                  /\ cache' = Release(Undo(cache, r), r)
                  /\ pipe' = RowsLeft(r).pipe /\ open' = RowsLeft(r).open
                  /\ content' = Kept(content) /\ UNCHANGED text

AbortIdle(r) == req[r].status # "done" /\ ~InOpen(r) /\ ~InFlight(r) /\ Stop(r, Gone)
AbortInFlight(r) == InFlight(r) /\ ~InOpen(r) /\ Stop(r, Gone)
AbortBeforeDispatch(r) == InOpen(r) /\ Stop(r, Gone)

Schedule(r) == \/ AdmitCold(r) \/ AdmitHitWritten(r) \/ AdmitHitInFlight(r) \/ AdmitHitOrphaned(r)
               \/ AdvanceIdle(r) \/ AdvanceInFlight(r)
NextPipeline == \/ Dispatch \/ Execute \/ ExecuteLast
                \/ \E r \in Reqs : \/ Schedule(r)
                                   \/ AbortIdle(r) \/ AbortInFlight(r) \/ AbortBeforeDispatch(r)
SpecPipeline == Init /\ [][NextPipeline]_vars
=============================================================================
