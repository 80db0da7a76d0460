----------------------------- MODULE Witnesses -----------------------------
(***************************************************************************)
(* No invariant is true for want of a case: each says "if so, then so",    *)
(* and TLC must find a state where the if is met, also when another row    *)
(* is in flight.  Every operator here says that there is no such state,    *)
(* and must fail like a variant.  The counterexample is the shortest way   *)
(* to such a state.                                                        *)
(***************************************************************************)
EXTENDS Preempt, Retention

Flying(P(_)) == \E i \in DOMAIN pipe : \E j \in DOMAIN pipe[i] : P(pipe[i][j])

\* StateTrue: a row that reads runs next, while another request's row is in the batch or in flight.
NothingRead ==
  ~\E i \in DOMAIN NextBatch : NextBatch[i].live /\ NextBatch[i].n > 0 /\ \E r \in Reqs \ {NextBatch[i].req} : InFlight(r)
\* FreshStart: a row of one token starts from nothing, in a slot that held another request's state.
NothingFresh ==
  ~\E i \in DOMAIN open : /\ open[i].n = 0 /\ open[i].m = 1
                         /\ Flying(LAMBDA row : ~row.live /\ WriteSlots(row) \cap WriteSlots(open[i]) # {})
\* SharedImmutable: a slot is published and shared by two requests, one of which has a row in the open batch.
NothingShared ==
  ~\E s \in Slots : /\ cache.hash[s] # NoHash /\ Cardinality(Referents(s)) > 1
                     /\ \E i \in DOMAIN open : open[i].req \in Referents(s)
\* WriteExclusive: two rows of a batch write, and a row in flight of a request that is gone writes one of their slots.
NothingExclusive ==
  ~(Len(open) > 1 /\ Flying(LAMBDA row : ~row.live /\ WriteSlots(row) \cap WriteSlots(open[2]) # {}))
\* NullUntouched: a running request's table has a hole, and its row reads and writes beside it.
NothingNull == ~\E i \in DOMAIN open : open[i].n > 0 /\ Null \in Range(open[i].table)
\* PublishTrue: a slot is published that a row in flight has still to write, of a request that is gone.
NothingPublished ==
  ~\E s \in Slots : cache.hash[s] # NoHash /\ content[s] # cache.hash[s] /\ Flying(LAMBDA row : ~row.live /\ s \in WriteSlots(row))
\* CountsExact: two requests refer to one slot, and nobody to one that is published.
NothingCounted == ~\E s, t \in Slots : cache.refs[s] = 2 /\ cache.refs[t] = 0 /\ cache.hash[t] # NoHash
\* HitLongest: a waiting request would hit, while the state that it would read has not been written.
NothingHit ==
  ~\E r \in Reqs : /\ Waiting(r) /\ Lookup(cache, r) > 0
                    /\ \A s \in Holders(cache, Prefix(r, Lookup(cache, r) * B)) : UnderWay(s) /\ content[s] # cache.hash[s]
\* CapHolds: a row is scheduled while its request keeps a state behind it, and has let another go.
NothingKept ==
  ~\E i \in DOMAIN open : LET held == {j \in 0 .. LastComputed(open[i].n) - 1 : At(open[i].table, j) # Null}
                           IN open[i].n > 0 /\ held # {} /\ Cardinality(held) < LastComputed(open[i].n)
=============================================================================
