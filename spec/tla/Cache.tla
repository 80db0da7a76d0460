------------------------------- MODULE Cache -------------------------------
(***************************************************************************)
(* The prefix cache: slots, block tables, reference counts, the LRU free   *)
(* list, the hash map, lookups, and what rows leave in the slots.  The     *)
(* nine invariants of DESIGN.md, section 3 stand at the end, by name.      *)
(*                                                                         *)
(* By itself this module runs one batch at a time, each before the next is *)
(* scheduled.  Pipeline, Preempt and Retention put more in flight; they    *)
(* use the operators and the invariants of this module.                    *)
(*                                                                         *)
(* The content of a slot is symbolic.  A state is the sequence of tokens   *)
(* that it has folded in: a row appends its tokens to whatever it read, so *)
(* a wrong read yields a wrong state.  An attention block is a sequence    *)
(* that starts with "kv".  A hash is the content that it names.            *)
(***************************************************************************)
EXTENDS Contract, FiniteSets, TLC

CONSTANTS Slots,      \* the pool without the null block
          Reqs,       \* 1 .. N
          MaxLen,     \* how many tokens a request gets; then it finishes
          Prompts,    \* the lengths that prompts may have
          Shares,     \* how many first tokens requests may have in common
          MaxRows,    \* rows of a batch
          Interval,   \* of the states, every Interval-th boundary's is retained for others
          Attention   \* whether requests hold attention blocks too

VARIABLES text,     \* text[r]: all tokens that request r will ever have
          req,      \* req[r]: its status, how many tokens are known, and how many are computed (done)
          cache,    \* the manager: table, attn, refs, free, hash
          content,  \* content[s]: what slot s holds
          open,     \* the batch being built: a sequence of rows
          pipe      \* batches in flight, oldest first
vars == <<text, req, cache, content, open, pipe>>

Garbage == <<"?">>
NoHash == <<>>
NoReq == 0
Prefix(r, n) == SubSeq(text[r], 1, n)
KV(q) == <<"kv">> \o q
Max(S) == CHOOSE x \in S : \A y \in S : y <= x

-----------------------------------------------------------------------------
(* The pool.  Operators take the cache record and return a new one.        *)

\* The columns that r needs so that its table covers `tokens` tokens, and whether the pool has them.
Missing(c, r, tokens) == Cdiv(tokens, B) - Len(c.table[r])
Need(c, r, tokens) == Missing(c, r, tokens) * (IF Attention THEN 2 ELSE 1)
Fits(c, r, tokens) == Need(c, r, tokens) <= Len(c.free)
Taken(c, r, tokens) == {c.free[i] : i \in 1 .. Need(c, r, tokens)}

\* Take slots from the head of the free list; what they cached is forgotten.
Forget(hash, new) == [s \in Slots |-> IF s \in new THEN NoHash ELSE hash[s]]
\* Of a request's two tables, whose slots are taken, and given back, first.
StateFirst == FALSE
Yes == TRUE
Grow(c, r, tokens) ==
  LET all    == Need(c, r, tokens)
      k      == Missing(c, r, tokens)
      new    == Taken(c, r, tokens)
      first  == SubSeq(c.free, 1, all - k)     \* empty, if states are all there is
      second == SubSeq(c.free, all - k + 1, all)
      swap   == StateFirst /\ Attention
  IN [c EXCEPT !.attn[r]  = @ \o (IF swap THEN second ELSE first),
               !.table[r] = @ \o (IF swap THEN first ELSE second),
               !.free     = SubSeq(@, all + 1, Len(@)),
               !.refs     = [s \in Slots |-> IF s \in new THEN 1 ELSE @[s]],
               !.hash     = Forget(@, new)]

\* Refer to the slots of a hit; those that nobody referred to leave the free list.
Unqueue(free, hit) == SelectSeq(free, LAMBDA s : s \notin hit)
Touch(c, hit) ==
  [c EXCEPT !.refs = [s \in Slots |-> IF s \in hit THEN @[s] + 1 ELSE @[s]], !.free = Unqueue(@, hit)]

\* Drop references, in this order; slots that nobody refers to any more join the free list: its tail, or, as in vLLM,
\* its head if no hash could be lost with them.
Freed(c, slots) == SelectSeq(slots, LAMBDA s : c.refs[s] = 1)
Join(c, freed) == c.free \o freed
UnpublishedFirst(c, freed) ==
  SelectSeq(freed, LAMBDA s : c.hash[s] = NoHash) \o c.free \o SelectSeq(freed, LAMBDA s : c.hash[s] # NoHash)
Drop(c, slots) ==
  [c EXCEPT !.refs = [s \in Slots |-> IF s \in Range(slots) THEN @[s] - 1 ELSE @[s]],
            !.free = Join(c, Freed(c, slots))]

\* A request's blocks go from the tail, so that long prefixes are evicted before short ones.
Reverse(q) == [i \in 1 .. Len(q) |-> q[Len(q) + 1 - i]]
Held(table) == SelectSeq(Reverse(table), LAMBDA s : s # Null)
Tables(c, r) == IF StateFirst THEN <<Held(c.table[r]), Held(c.attn[r])>> ELSE <<Held(c.attn[r]), Held(c.table[r])>>
Release(c, r) ==
  [Drop(Drop(c, Tables(c, r)[1]), Tables(c, r)[2]) EXCEPT !.table[r] = <<>>, !.attn[r] = <<>>]

\* A row publishes the blocks that it fills (of the states, those that are retained), when it is scheduled.
Retained(j) == (j + 1) % Interval = 0
PublishedStates(row) == {j \in FullColumns(row) : Retained(j)}
PublishedAttn(row) == IF row.attn = <<>> THEN {} ELSE FullColumns(row)
NameOf(row, j) == Prefix(row.req, (j + 1) * B)
Publish(c, row) ==
  LET State(s) == {j \in PublishedStates(row) : At(row.table, j) = s}
      Attn(s)  == {j \in PublishedAttn(row) : At(row.attn, j) = s}
  IN [c EXCEPT !.hash = [s \in Slots |->
        CASE State(s) # {} -> NameOf(row, Max(State(s)))
          [] Attn(s) # {}  -> KV(NameOf(row, Max(Attn(s))))
          [] OTHER         -> @[s]]]

\* The slots that a row published; if it will not run, it takes that back.
PublishedBy(row) ==
  {At(row.table, j) : j \in PublishedStates(row)} \cup {At(row.attn, j) : j \in PublishedAttn(row)}
Retract(c, row) ==
  [c EXCEPT !.hash = [s \in Slots |-> IF s \in PublishedBy(row) THEN NoHash ELSE @[s]]]

-----------------------------------------------------------------------------
(* Lookups.                                                                *)

Holders(c, name) == {s \in Slots : c.hash[s] = name}

\* At least one token is left to compute, because a step must have something to sample from.
HitLimit(r) == (req[r].known - 1) \div B
AttnHeld(c, r, k) == ~Attention \/ \A j \in 1 .. k : Holders(c, KV(Prefix(r, j * B))) # {}
Hits(c, r) == {k \in 1 .. HitLimit(r) : Holders(c, Prefix(r, k * B)) # {} /\ AttnHeld(c, r, k)}
Lookup(c, r) == Max(Hits(c, r) \cup {0})

\* The cache after a hit of k blocks: of the states only the last is referred to, of the attention blocks all.
StartsFrom(c, r, k, state, attn) ==
  [Touch(c, {state} \cup Range(attn)) EXCEPT
     !.table[r] = [j \in 1 .. k |-> IF j = k THEN state ELSE Null], !.attn[r] = attn]
AttnChoices(c, r, k) ==
  IF ~Attention THEN {<<>>}
  ELSE {f \in [1 .. k -> Slots] : \A j \in 1 .. k : f[j] \in Holders(c, KV(Prefix(r, j * B)))}

-----------------------------------------------------------------------------
(* Rows: what they compute.                                                *)

\* A row is live until its request is stopped.
NewRow(c, r, n, m) ==
  [req |-> r, live |-> TRUE, n |-> n, m |-> m, table |-> c.table[r], attn |-> c.attn[r]]

AttnRight(row, c) ==
  row.attn = <<>> \/ ~HasState(row) \/
  \A j \in 0 .. LastComputed(row.n) : c[At(row.attn, j)] = KV(Prefix(row.req, Min((j + 1) * B, row.n)))
Input(row, c) == CASE ~AttnRight(row, c)   -> Garbage
                   [] ReadSlot(row) = Null -> <<>>
                   [] OTHER                -> c[ReadSlot(row)]
Left(row, c, j) == Input(row, c) \o SubSeq(text[row.req], row.n + 1, Upto(row, j))

\* The contents after a batch: every row reads before any row writes.
After(c, batch) ==
  [s \in Slots |->
    IF \E i \in DOMAIN batch : s \in WriteSlots(batch[i])
    THEN LET row == batch[CHOOSE i \in DOMAIN batch : s \in WriteSlots(batch[i])]
             in  == {j \in WriteColumns(row) : At(row.table, j) = s}
         IN IF in # {} THEN Left(row, c, Max(in))
            ELSE KV(Left(row, c, Max({j \in WriteColumns(row) : At(row.attn, j) = s})))
    ELSE c[s]]
RECURSIVE AfterAll(_, _)
AfterAll(c, batches) == IF batches = <<>> THEN c ELSE AfterAll(After(c, Head(batches)), Tail(batches))
Planned == After(AfterAll(content, pipe), open)

EveryRow(P(_)) == /\ \A i \in DOMAIN pipe : \A j \in DOMAIN pipe[i] : P(pipe[i][j])
                  /\ \A j \in DOMAIN open : P(open[j])
Uses(row, s) == s \in ReadSlots(row) \/ s \in WriteSlots(row)
Busy(s) == \/ \E i \in DOMAIN pipe : \E j \in DOMAIN pipe[i] : Uses(pipe[i][j], s)
           \/ \E j \in DOMAIN open : Uses(open[j], s)

\* A slot that is given out holds garbage, unless a row in flight still reads or writes it.  This
\* is what makes states with different histories equal.
Recycled(new) == [s \in Slots |-> IF s \in new /\ ~Busy(s) THEN Garbage ELSE content[s]]

-----------------------------------------------------------------------------
(* Requests.                                                               *)

Waiting(r) == req[r].status = "waiting"
Running(r) == req[r].status = "running"
Gone == [status |-> "done", known |-> 0, done |-> 0]
InOpen(r) == \E j \in DOMAIN open : open[j].req = r
InFlight(r) == \E i \in DOMAIN pipe : \E j \in DOMAIN pipe[i] : pipe[i][j].req = r /\ pipe[i][j].live

\* Give r a row (n, m) in the open batch, starting from cache c0, whose table of r covers n tokens.
Place(r, n, m, c0) ==
  LET c1  == Grow(c0, r, n + m)
      row == NewRow(c1, r, n, m)
  IN /\ Fits(c0, r, n + m) /\ Len(open) < MaxRows
     /\ cache' = Publish(c1, row)
     /\ content' = Recycled(Taken(c0, r, n + m))
     /\ open' = Append(open, row)
     /\ req' = [req EXCEPT ![r] = [@ EXCEPT !.status = "running", !.done = n + m]]
     /\ UNCHANGED <<text, pipe>>

\* A block that the open batch publishes is not there yet for the batch's other rows: wait for the next.
MayHit(slots) == \A i \in DOMAIN open : slots \cap PublishedBy(open[i]) = {}

Cuts == 1 .. MaxLen

\* Start a waiting request from its longest hit, k blocks; Chosen says which of several holders may be the one.
Start(r, k, Chosen(_)) ==
  \E m \in Cuts :
    /\ k * B + m <= req[r].known
    /\ IF k = 0 THEN Place(r, 0, m, cache)
       ELSE \E s \in Holders(cache, Prefix(r, k * B)), attn \in AttnChoices(cache, r, k) :
              /\ Chosen(s) /\ MayHit({s} \cup Range(attn))
              /\ Place(r, k * B, m, StartsFrom(cache, r, k, s, attn))
AnyHolder(s) == TRUE
AdmitCold(r) == Waiting(r) /\ Lookup(cache, r) = 0 /\ Start(r, 0, AnyHolder)
AdmitHit(r) == Waiting(r) /\ Lookup(cache, r) > 0 /\ Start(r, Lookup(cache, r), AnyHolder)

\* A running request goes on where it stopped, by any number of tokens.
Continues(r) == /\ Running(r) /\ ~InOpen(r)
                /\ \E m \in Cuts : req[r].done + m <= req[r].known /\ Place(r, req[r].done, m, cache)
Advance(r) == Running(r) /\ Continues(r)

\* A row that reaches the last known token samples the next one, if it is sent.
Sampled == [r \in Reqs |-> IF InOpen(r) /\ req[r].done = req[r].known /\ req[r].known < Len(text[r])
                            THEN [req[r] EXCEPT !.known = @ + 1] ELSE req[r]]

\* A request that has all its tokens gives back its blocks, when its last row has run.
Last(row) == row.live /\ row.n + row.m = Len(text[row.req])
Finishing(batch) == {r \in Reqs : \E i \in DOMAIN batch : batch[i].req = r /\ Last(batch[i])}
RECURSIVE Released(_, _)
Released(c, batch) ==
  IF batch = <<>> THEN c
  ELSE Released(IF Last(Head(batch)) THEN Release(c, Head(batch).req) ELSE c, Tail(batch))
Finished(q, batch) == [r \in Reqs |-> IF r \in Finishing(batch) THEN Gone ELSE q[r]]

-----------------------------------------------------------------------------
(* One batch at a time.                                                    *)

RECURSIVE InAnyOrder(_)
InAnyOrder(S) == IF S = {} THEN <<>> ELSE LET s == CHOOSE s \in S : TRUE IN <<s>> \o InAnyOrder(S \ {s})
Letter(r) == <<"a", "b", "c", "d">>[r]
Ascending(p) == \A r \in Reqs \ {1} : p[r - 1] <= p[r]
InitWith(prompts) ==
  /\ \E share \in Shares :
       text = [r \in Reqs |-> [i \in 1 .. MaxLen |-> IF i <= share THEN "s" ELSE Letter(r)]]
  /\ \E p \in prompts : req = [r \in Reqs |-> [status |-> "waiting", known |-> p[r], done |-> 0]]
  /\ cache = [table |-> [r \in Reqs |-> <<>>], attn |-> [r \in Reqs |-> <<>>],
              refs |-> [s \in Slots |-> 0], hash |-> [s \in Slots |-> NoHash],
              free |-> InAnyOrder(Slots)]
  /\ content = [s \in Slots |-> Garbage]
  /\ open = <<>> /\ pipe = <<>>
\* Requests differ by name only (unless the name is a priority), so prompts in ascending order are enough.
Init == InitWith({p \in [Reqs -> Prompts] : Ascending(p)})
InitAnyOrder == InitWith([Reqs -> Prompts])

Run == /\ open # <<>> /\ content' = After(content, open)
       /\ cache' = Released(cache, open) /\ req' = Finished(Sampled, open)
       /\ open' = <<>> /\ UNCHANGED <<text, pipe>>
Abort(r) == /\ open = <<>> /\ req[r].status \in {"waiting", "running"}
            /\ req' = [req EXCEPT ![r] = Gone] /\ cache' = Release(cache, r)
            /\ UNCHANGED <<text, content, open, pipe>>
NextCache == Run \/ \E r \in Reqs : AdmitCold(r) \/ AdmitHit(r) \/ Advance(r) \/ Abort(r)
SpecCache == Init /\ [][NextCache]_vars

-----------------------------------------------------------------------------
(* The invariants of DESIGN.md, section 3.                                 *)

\* The next batch to run: what it reads is in place now.
NextBatch == IF pipe # <<>> THEN Head(pipe) ELSE open

\* What the row of a live request reads is the state (and the attention blocks) of its own tokens.
Reads(row) == row.live /\ row.n > 0 => Input(row, content) = Prefix(row.req, row.n)
StateTrue == \A i \in DOMAIN NextBatch : Reads(NextBatch[i])

\* A row that starts from nothing reads no state, also when m = 1.
ReadsNothing(row) == row.n = 0 => ReadSlot(row) = Null
FreshStart == EveryRow(ReadsNothing)

Referents(s) == {r \in Reqs : s \in Range(cache.table[r]) \cup Range(cache.attn[r])}

\* While its batch is built, nobody but the row's request refers to what it writes, and what is published there
\* is what the row itself will leave.
Names(row, s) == {NameOf(row, j) : j \in {j \in FullColumns(row) : At(row.table, j) = s}}
            \cup {KV(NameOf(row, j)) : j \in {j \in PublishedAttn(row) : At(row.attn, j) = s}}
SharedImmutable ==
  \A i \in DOMAIN open : \A s \in WriteSlots(open[i]) :
    Referents(s) \subseteq {open[i].req} /\ cache.hash[s] \in Names(open[i], s) \cup {NoHash}

\* A scheduled row writes slots of its request alone; two rows of a batch never write the same slot.
Disjoint(batch) == \A i, j \in DOMAIN batch : i < j => WriteSlots(batch[i]) \cap WriteSlots(batch[j]) = {}
WriteExclusive == /\ \A i \in DOMAIN open : \A s \in WriteSlots(open[i]) : Referents(s) = {open[i].req}
                  /\ Disjoint(open) /\ \A i \in DOMAIN pipe : Disjoint(pipe[i])

\* Rows with tokens find slots wherever they read or write; padding touches nothing.
FindsSlots(row) == IF row.m = 0 THEN ReadSlots(row) \cup WriteSlots(row) = {}
                   ELSE /\ row.n > 0 => ReadSlot(row) # Null
                        /\ \A j \in WriteColumns(row) : At(row.table, j) # Null
NullUntouched == EveryRow(FindsSlots)

\* Replaying what is in flight leaves, in every published slot, what its hash names.
PublishTrue == LET later == Planned IN \A s \in Slots : cache.hash[s] # NoHash => later[s] = cache.hash[s]

\* Counts are the number of table entries; the free list has exactly the slots with none, once.
CountsExact ==
  /\ \A s \in Slots : cache.refs[s] = Cardinality(Referents(s))
  /\ Range(cache.free) = {s \in Slots : cache.refs[s] = 0}
  /\ Cardinality(Range(cache.free)) = Len(cache.free)

\* A lookup finds all that was written, or will be by a row in flight, and was not given out again; and it leaves a
\* token to compute.  A slot may have been given out, and have come back because the row that took it was never
\* sent, while an orphaned row in flight still uses it: that counts as given out.
Evicted(s) == /\ cache.hash[s] = NoHash
              /\ \E i \in DOMAIN pipe : \E j \in DOMAIN pipe[i] : ~pipe[i][j].live /\ Uses(pipe[i][j], s)
HitLongest ==
  LET later == Planned
      Stored(name) == \E s \in Slots : later[s] = name /\ ~Evicted(s)
      Usable(r, k) == /\ k * B < req[r].known /\ Retained(k - 1) /\ Stored(Prefix(r, k * B))
                      /\ ~Attention \/ \A j \in 1 .. k : Stored(KV(Prefix(r, j * B)))
  IN \A r \in Reqs : Waiting(r) =>
       Lookup(cache, r) = Max({0} \cup {k \in 1 .. Len(text[r]) \div B : Usable(r, k)})

\* Under fair scheduling every request finishes.  TLC checks that nothing gets stuck as a deadlock, which is much
\* cheaper than weak fairness; then fair means that something goes on happening until all is done.
AllDone == \A r \in Reqs : req[r].status = "done"
Rest == AllDone /\ UNCHANGED vars
Happens == []<>AllDone \/ []<><<TRUE>>_vars
Progress == \A r \in Reqs : <>(req[r].status = "done")

Symmetry == Permutations(Slots)
=============================================================================
