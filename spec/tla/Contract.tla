------------------------------ MODULE Contract ------------------------------
(***************************************************************************)
(* What one row of a step may touch: DESIGN.md, section 3.  Pure operators *)
(* of a row, no variables.                                                 *)
(*                                                                         *)
(* A row takes a request from n computed tokens to n + m.  It carries the  *)
(* request's block table as it was when the row was scheduled: column j    *)
(* (counted from 0) covers the tokens jB + 1 .. (j + 1)B and refers to a   *)
(* slot, or to Null.  attn is the table of the attention blocks, empty in  *)
(* a model without them.  A row with m = 0 is padding.                     *)
(***************************************************************************)
EXTENDS Naturals, Sequences

CONSTANTS B,     \* block size, in tokens
          Null   \* the null block

Cdiv(a, b) == (a + b - 1) \div b
Min(a, b) == IF a < b THEN a ELSE b
Range(q) == {q[i] : i \in DOMAIN q}
At(table, j) == table[j + 1]

\* As in vLLM, an index that is undefined (n = 0, padding) is clamped to 0, where it looks like column 0.
LastComputed(n) == IF n = 0 THEN 0 ELSE Cdiv(n, B) - 1               \* the read column, if n > 0
FirstScheduled(n) == n \div B                                        \* the first write column
LastScheduled(n, m) == IF n + m = 0 THEN 0 ELSE Cdiv(n + m, B) - 1   \* the last write column

\* So lengths decide what is touched, never an index; and n decides whether there is a state, never m.
Touches(row) == row.m > 0
HasState(row) == Touches(row) /\ row.n > 0
ReadSlot(row) == IF HasState(row) THEN At(row.table, LastComputed(row.n)) ELSE Null
WriteColumns(row) == IF Touches(row) THEN FirstScheduled(row.n) .. LastScheduled(row.n, row.m) ELSE {}

\* How many tokens the state that is left in column j has folded in, and which blocks the manager takes for full.
Upto(row, j) == Min((j + 1) * B, row.n + row.m)
FullColumns(row) == {j \in FirstScheduled(row.n) .. LastScheduled(row.n, row.m) : (j + 1) * B <= row.n + row.m}

StateWrites(row) == {At(row.table, j) : j \in WriteColumns(row)} \ {Null}
AttnWrites(row) == IF row.attn = <<>> THEN {} ELSE {At(row.attn, j) : j \in WriteColumns(row)}
WriteSlots(row) == StateWrites(row) \cup AttnWrites(row)
AttnReads(row) == IF row.attn = <<>> \/ ~HasState(row) THEN {}
                  ELSE {At(row.attn, j) : j \in 0 .. LastComputed(row.n)}
ReadSlots(row) == ({ReadSlot(row)} \ {Null}) \cup AttnReads(row)
=============================================================================
