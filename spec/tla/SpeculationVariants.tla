------------------------ MODULE SpeculationVariants ------------------------
(***************************************************************************)
(* What must fail, for Speculation: see Variants.                          *)
(***************************************************************************)
EXTENDS Speculation

DraftsToo(k) == Named(Most, Most + 1 + k)
AsIfAllAccepted(count) == seen + 1 + K
BoundariesForgotten(n0, n1) == hash
RoomForAllDrafts(k) == 1 + K
StartsAfresh(row) == Null
SchedulersCount(row) == row.start
NoLookahead(k) == 1
FirstCandidate(row, n0, a) == Home(row, n0, 0)
LastCandidate(row, n0, a) == Home(row, n0, row.k)
BoundaryInScratch(row, n0, i) == IF i = row.k THEN At(row.table, LastScheduled(n0 + 1 + i, 0)) ELSE Scratch(i)
FirstInColumn(row, n0, i) ==
  IF (n0 + 1 + i) % B = 0 \/ i \in {0, row.k} THEN At(row.table, LastScheduled(n0 + 1 + i, 0)) ELSE Scratch(i)
InReadColumn(row, n0, i) ==
  CASE i = 0 /\ n0 > 0                   -> At(row.table, LastComputed(n0))
    [] (n0 + 1 + i) % B = 0 \/ i = row.k -> At(row.table, LastScheduled(n0 + 1 + i, 0))
    [] OTHER                             -> Scratch(i)
=============================================================================
