---------------------------- MODULE Speculation ----------------------------
(***************************************************************************)
(* Speculative decoding of one request.  A verify row computes 1 known     *)
(* token and k drafts, starting from state(n); how many drafts are right,  *)
(* a, is known only when it has run.  The next row starts from             *)
(* state(n + 1 + a), on the device, before the scheduler hears of it.      *)
(*                                                                         *)
(* A verify row is a row of the contract with m = 1 + k: in each column    *)
(* that it touches it leaves the state at that column's boundary or at its *)
(* own end.  The candidates between go to K scratch slots of the request.  *)
(* So every candidate has one home, a boundary is in place if its tokens   *)
(* are accepted, and nothing is ever copied.  A boundary of drafts is      *)
(* published when it is reported as accepted, never before: until then its *)
(* slot may be written again.  Prefill rows publish when scheduled.        *)
(***************************************************************************)
EXTENDS Contract, FiniteSets

CONSTANTS K,        \* drafts of a row, at most
          MaxLen,   \* the request finishes when it has this many tokens
          Prompts,  \* lengths of its prompt
          Depth     \* rows that are in flight or not reported, at most

VARIABLES prompt, \* tokens of the prompt
          \* the scheduler's: slots of the columns, hashes, tokens known to be right
          table, hash, seen,
          \* the device's: what slots hold, tokens computed, where their state is
          content, n, at,
          \* rows that will run, and the counts that the scheduler has not heard of
          flight, results
vars == <<prompt, table, hash, seen, content, n, at, flight, results>>

Wrong == 0
Right(x) == [i \in 1 .. x |-> i]
Slots == 1 .. Cdiv(MaxLen, B)
Scratch(i) == 100 + i
AllSlots == Slots \cup {Scratch(i) : i \in 0 .. K - 1}
NoName == 0
NewRow(m, k, columns, start) == [m |-> m, k |-> k, table |-> columns, start |-> start]
IsVerify(row) == row.m = 0

\* The scheduler's count, if all drafts that it has not heard of are right.
RECURSIVE Sum(_)
Sum(rows) == IF rows = <<>> THEN 0 ELSE Sum(Tail(rows)) + (IF IsVerify(Head(rows)) THEN 1 + Head(rows).k ELSE Head(rows).m)
Most == (IF results = <<>> THEN seen ELSE results[Len(results)]) + Sum(flight)
Outstanding == Len(flight) + Len(results)

-----------------------------------------------------------------------------
(* Where a row that starts at n0 leaves its states.                        *)

\* The state after n0 + 1 + i tokens.
Home(row, n0, i) ==
  LET x == n0 + 1 + i
  IN IF x % B = 0 \/ i = row.k THEN At(row.table, LastScheduled(x, 0)) ELSE Scratch(i)
\* With a of k drafts right, the others are wrong; the states after them too.
Candidate(q, n0, i, a) == q \o [j \in 1 .. i + 1 |-> IF j <= a + 1 THEN n0 + j ELSE Wrong]
Verified(c, row, n0, from, a) ==
  [s \in AllSlots |-> LET I == {i \in 0 .. row.k : Home(row, n0, i) = s}
                      IN IF I = {} THEN c[s]
                         ELSE Candidate(IF from = Null THEN <<>> ELSE c[from], n0, CHOOSE i \in I : \A j \in I : j <= i, a)]

\* A prefill row is a row of the contract.
AsRow(row, n0) == [n |-> n0, m |-> row.m, table |-> row.table, attn |-> <<>>]
Prefilled(c, row, n0, from) ==
  [s \in AllSlots |-> LET J == {j \in WriteColumns(AsRow(row, n0)) : At(row.table, j) = s}
                      IN IF J = {} THEN c[s]
                         ELSE (IF from = Null THEN <<>> ELSE c[from])
                              \o [i \in 1 .. Upto(AsRow(row, n0), CHOOSE j \in J : TRUE) - n0 |-> n0 + i]]

-----------------------------------------------------------------------------
(* The scheduler.                                                          *)

\* The table must cover every token that a row may reach, drafts included.
Lookahead(k) == 1 + k
Covering(tokens) == [j \in 1 .. Cdiv(tokens, B) |-> j]
Longer(old, new) == IF Len(new) > Len(old) THEN new ELSE old

\* Boundaries that become certain when the count goes from n0 to n1.
Named(n0, n1) == [s \in Slots |-> IF n0 < s * B /\ s * B <= n1 THEN s * B ELSE hash[s]]

Prefill ==
  /\ Outstanding < Depth
  /\ \E m \in 1 .. MaxLen :
       /\ Most + m <= prompt
       /\ table' = Longer(table, Covering(Most + m))
       /\ flight' = Append(flight, NewRow(m, 0, table', Most))
       /\ hash' = Named(Most, Most + m)
  /\ UNCHANGED <<prompt, seen, content, n, at, results>>

PublishedAhead(k) == hash
\* At the end of its life a request has room for fewer drafts, or none.
Room(k) == 1 + k
Verify(k) ==
  /\ Outstanding < Depth /\ Most >= prompt /\ Most + Room(k) <= MaxLen
  /\ table' = Longer(table, Covering(Most + Lookahead(k)))
  /\ flight' = Append(flight, NewRow(0, k, table', Most))
  /\ hash' = PublishedAhead(k)
  /\ UNCHANGED <<prompt, seen, content, n, at, results>>
VerifyPlain == Outstanding = 0 /\ Verify(0)
VerifyDrafts == Outstanding = 0 /\ \E k \in 1 .. K : Verify(k)
VerifyBeforeReport == Outstanding > 0 /\ \E k \in 0 .. K : Verify(k)

\* The scheduler hears the count after its oldest row.
Certain(count) == count
Reported(n0, n1) == Named(n0, n1)
Report == /\ results # <<>>
          /\ seen' = Head(results) /\ results' = Tail(results)
          /\ hash' = Reported(seen, Certain(Head(results)))
          /\ UNCHANGED <<prompt, table, content, n, at, flight>>

-----------------------------------------------------------------------------
(* The device.                                                             *)

\* A verify row finds out on the device where it starts; row.start is where the scheduler thought it might.
StartOf(row) == n
Kept(row, n0, a) == Home(row, n0, a)
RunVerify(row, a) ==
  /\ content' = Verified(content, row, StartOf(row), at, a)
  /\ n' = n + 1 + a
  /\ at' = Kept(row, StartOf(row), a)
Ends == /\ flight' = Tail(flight) /\ results' = Append(results, n')
        /\ UNCHANGED <<prompt, table, hash, seen>>
Oldest == Head(flight)

Start(row) == At(row.table, LastScheduled(n, row.m))
RunPrefill == /\ flight # <<>> /\ ~IsVerify(Oldest)
              /\ content' = Prefilled(content, Oldest, n, at)
              /\ n' = n + Oldest.m
              /\ at' = Start(Oldest)
              /\ Ends
Accept(a) == a <= Oldest.k /\ RunVerify(Oldest, a) /\ Ends
PastBoundary(a) == (n + 1 + a) \div B < (n + 1 + Oldest.k) \div B
AcceptAll == flight # <<>> /\ IsVerify(Oldest) /\ Accept(Oldest.k)
RollBack == flight # <<>> /\ IsVerify(Oldest) /\ \E a \in 0 .. Oldest.k - 1 : ~PastBoundary(a) /\ Accept(a)
RollBackPastBoundary ==
  flight # <<>> /\ IsVerify(Oldest) /\ \E a \in 0 .. Oldest.k - 1 : PastBoundary(a) /\ Accept(a)

Init == /\ prompt \in Prompts
        /\ table = <<>> /\ hash = [s \in Slots |-> NoName] /\ seen = 0
        /\ content = [s \in AllSlots |-> <<Wrong>>] /\ n = 0 /\ at = Null
        /\ flight = <<>> /\ results = <<>>
Next == \/ Prefill \/ VerifyPlain \/ VerifyDrafts \/ VerifyBeforeReport \/ Report
        \/ RunPrefill \/ AcceptAll \/ RollBack \/ RollBackPastBoundary
SpecSpeculation == Init /\ [][Next]_vars
Done == seen = MaxLen
FairSpeculation == Init /\ [][Next \/ (Done /\ UNCHANGED vars)]_vars /\ ([]<>Done \/ []<><<TRUE>>_vars)

-----------------------------------------------------------------------------
(* The invariants.                                                         *)

\* Where the i-th row in flight may start.
RECURSIVE Starts(_)
Starts(i) ==
  IF i = 1 THEN {n}
  ELSE LET row == flight[i - 1]
       IN UNION {IF IsVerify(row) THEN {p + 1 + a : a \in 0 .. row.k} ELSE {p + row.m} : p \in Starts(i - 1)}
Homes(row, p) == {Home(row, p, i) : i \in 0 .. row.k}

StateTrue == flight # <<>> /\ n > 0 => content[at] = Right(n)
FreshStart == (n = 0) = (at = Null)
NullUntouched ==
  \A i \in DOMAIN flight : IsVerify(flight[i]) =>
    \A p \in Starts(i) : Cdiv(p + 1 + flight[i].k, B) <= Len(flight[i].table)
WriteExclusive ==
  \A i \in DOMAIN flight : IsVerify(flight[i]) =>
    \A p \in Starts(i) : Cardinality(Homes(flight[i], p)) = flight[i].k + 1
SharedImmutable ==
  \A i \in DOMAIN flight : IsVerify(flight[i]) =>
    \A p \in Starts(i) : \A s \in Homes(flight[i], p) \cap Slots : hash[s] = NoName

\* Rows in flight as they may go: what they leave for the worst count of drafts is covered by SharedImmutable.
RECURSIVE Later(_, _, _, _)
Later(c, rows, n0, from) ==
  IF rows = <<>> \/ IsVerify(Head(rows)) THEN c
  ELSE Later(Prefilled(c, Head(rows), n0, from), Tail(rows), n0 + Head(rows).m,
             At(Head(rows).table, LastScheduled(n0, Head(rows).m)))
PublishTrue == LET later == Later(content, flight, n, at)
               IN \A s \in Slots : hash[s] # NoName => later[s] = Right(hash[s])
HitLongest == \A s \in Slots : s * B <= seen => hash[s] = s * B
Progress == <>Done
=============================================================================
