// The state of a run, in Airflow's colour of what is alike. The stylesheet darkens it.
import type { CSSProperties } from "react";
import { Badge } from "../chakra.ts";
import { look } from "../format/states.ts";

export function StateBadge({ state }: { state: string }) {
  const { word, colour } = look(state);
  return (
    <Badge
      className="el-state"
      borderRadius="full"
      colorPalette={colour}
      style={{ "--el-state": `var(--chakra-colors-${colour}-solid)` } as CSSProperties}
      variant="solid"
      px={2.5}
      py={0.5}
    >
      {word}
    </Badge>
  );
}
