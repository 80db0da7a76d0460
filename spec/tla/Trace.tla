------------------------------- MODULE Trace -------------------------------
(***************************************************************************)
(* Is a trace of an engine a behaviour of the design?  Every event names   *)
(* an action and all that the engine chose: rows, slots, what was          *)
(* published, read, written and freed.  So at most one step of the design  *)
(* fits each event, and the search is a line for each trace.  A trace ends *)
(* where no step fits, or where an invariant does not hold.                *)
(*                                                                         *)
(* TraceData is made by spec/traces.py: Traces, a sequence of records with *)
(* text, prompts and events.                                               *)
(***************************************************************************)
EXTENDS Preempt, Retention, TraceData

CONSTANT LastEvent  \* where an explanation stops
\* For an engine that gives back the last of the skipped columns first.
InSkipOrder(slots) == slots
LastColumnFirst(slots) == Reverse(slots)
VARIABLES which,  \* the trace
          at      \* its next event
traceVars == <<vars, which, at>>

Events == Traces[which].events
E == Events[at]
Is(name) == at <= Len(Events) /\ E.event = name

Reached == [StateTrue |-> StateTrue, FreshStart |-> FreshStart, SharedImmutable |-> SharedImmutable,
            WriteExclusive |-> WriteExclusive, NullUntouched |-> NullUntouched, PublishTrue |-> PublishTrue,
            CountsExact |-> CountsExact, HitLongest |-> HitLongest]
Broken == {name \in DOMAIN Reached : ~Reached[name]}

\* A waiting request starts from its longest hit, in the slots that the engine says; a running one goes on.
AttnHit(k) == IF Attention THEN SubSeq(E.attention, 1, k) ELSE <<>>
Hit(r, k) == /\ k = Lookup(cache, r) /\ Len(E.table) >= k /\ (Attention => Len(E.attention) >= k)
             /\ At(E.table, k - 1) \in Holders(cache, Prefix(r, k * B))
             /\ \A j \in DOMAIN AttnHit(k) : AttnHit(k)[j] \in Holders(cache, KV(Prefix(r, j * B)))
             /\ MayHit({At(E.table, k - 1)} \cup Range(AttnHit(k)))
From(r, k) == StartsFrom(cache, r, k, At(E.table, k - 1), AttnHit(k))
Scheduled ==
  /\ Is("schedule") /\ E.m > 0 /\ ~InOpen(E.request) /\ E.n + E.m <= req[E.request].known
  /\ \/ Waiting(E.request) /\ E.n = 0 /\ Lookup(cache, E.request) = 0 /\ Place(E.request, 0, E.m, cache)
     \/ /\ Waiting(E.request) /\ E.n > 0 /\ E.n % B = 0 /\ Hit(E.request, E.n \div B)
        /\ Place(E.request, E.n, E.m, From(E.request, E.n \div B))
     \/ Running(E.request) /\ E.n = req[E.request].done /\ Place(E.request, E.n, E.m, cache)
  /\ cache'.table[E.request] = E.table /\ cache'.attn[E.request] = E.attention
  /\ Range(E.published) = PublishedBy(open'[Len(open')])

\* A running request gives back the states behind the one that it reads next.
Skipped ==
  /\ Is("skip") /\ Running(E.request) /\ ~InOpen(E.request)
  /\ LET J == Behind(cache, E.request)
         gone == InSkipOrder(InOrder(cache, E.request, J))
     IN /\ J # {} /\ E.freed = gone
        /\ cache' = [Drop(cache, gone) EXCEPT !.table[E.request] =
                       [i \in DOMAIN @ |-> IF i - 1 \in J THEN Null ELSE @[i]]]
  /\ UNCHANGED <<text, req, content, open, pipe>>

Sent == Is("dispatch") /\ E.requests = [i \in DOMAIN open |-> open[i].req] /\ Dispatch

\* What each row touched; padding rows (request 0) touch nothing, and the design does not have them.
Real == SelectSeq(E.rows, LAMBDA row : row.request # NoReq)
Ran == /\ Is("execute") /\ pipe # <<>> /\ Len(Real) = Len(Head(pipe))
       /\ \A i \in DOMAIN Real : /\ Real[i].request = Head(pipe)[i].req
                                 /\ Range(Real[i].reads) = ReadSlots(Head(pipe)[i])
                                 /\ Range(Real[i].writes) = WriteSlots(Head(pipe)[i])
       /\ \A i \in DOMAIN E.rows : E.rows[i].request = NoReq => E.rows[i].reads = <<>> /\ E.rows[i].writes = <<>>
       /\ Range(E.finished) = Finishing(Head(pipe))
       /\ Executes

\* The slots that a request gives back, in the order in which it does, and those that lose their hash with it.
Given(r) == Tables(cache, r)[1] \o Tables(cache, r)[2]
TakenBack == {s \in Slots : cache.hash[s] # NoHash /\ cache'.hash[s] = NoHash}
Stopped(after) == /\ E.freed = Given(E.request) /\ Stop(E.request, after) /\ Range(E.unpublished) = TakenBack
Preempted == Is("preempt") /\ Running(E.request) /\ Stopped(Requeued(E.request))
Aborted == Is("abort") /\ req[E.request].status # "done" /\ Stopped(Gone)

TraceInit ==
  /\ which \in DOMAIN Traces /\ at = 1
  /\ text = [r \in Reqs |-> IF r \in DOMAIN Traces[which].text THEN Traces[which].text[r] ELSE <<>>]
  /\ req = [r \in Reqs |-> IF r \in DOMAIN Traces[which].text
                           THEN [status |-> "waiting", known |-> Traces[which].prompts[r], done |-> 0] ELSE Gone]
  /\ cache = [table |-> [r \in Reqs |-> <<>>], attn |-> [r \in Reqs |-> <<>>],
              refs |-> [s \in Slots |-> 0], hash |-> [s \in Slots |-> NoHash],
              free |-> Traces[which].free]
  /\ content = [s \in Slots |-> Garbage]
  /\ open = <<>> /\ pipe = <<>>
TraceNext == /\ Broken = {} /\ at' = at + 1 /\ which' = which
             /\ Scheduled \/ Skipped \/ Sent \/ Ran \/ Preempted \/ Aborted
TraceSpec == TraceInit /\ [][TraceNext]_traceVars

\* How far each trace gets: printed at every step, and held until the event that the explanation asks for.
Emit == PrintT(ToString(<<"at", which, at, Broken>>))
Before == at < LastEvent
=============================================================================
