------------------------------- MODULE Cases -------------------------------
(***************************************************************************)
(* The batches that the design can send, with what the contract says of    *)
(* each row: cases for the block-index metadata of the code.  Slots are    *)
(* numbers and Null is 0, as in the code.  Every state that ends with a    *)
(* dispatch prints its batch.                                              *)
(***************************************************************************)
EXTENDS Preempt, Retention

\* Chunk edges are the boundaries, and every C tokens counted from the last one; a row's first token starts a chunk.
Chunks(row, C) == Cardinality({p \in row.n .. row.n + row.m - 1 : p = row.n \/ (p % B) % C = 0})

\* Indices are 0 where they are undefined.
WriteSlot(row) == IF Touches(row) THEN At(row.table, LastScheduled(row.n, row.m)) ELSE Null
Case(row) ==
  <<row.n, row.m, row.table,
    IF HasState(row) THEN LastComputed(row.n) ELSE 0,
    IF Touches(row) THEN FirstScheduled(row.n) ELSE 0,
    IF Touches(row) THEN LastScheduled(row.n, row.m) ELSE 0,
    ReadSlot(row), WriteSlot(row), <<Chunks(row, 1), Chunks(row, 2), Chunks(row, 3)>>>>
Printed(batch) == PrintT(ToString(<<"case", [i \in DOMAIN batch |-> Case(batch[i])]>>))
Emit == /\ open = <<>> \/ Printed(open)
        /\ open # <<>> \/ pipe = <<>> \/ Printed(pipe[Len(pipe)])
=============================================================================
