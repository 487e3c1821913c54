// A tiny curve without axes: whether something goes up or down.
import { sparkPath } from "./sparkline.ts";

interface Props {
  values: readonly (number | null)[];
  label: string;
  width?: number;
  height?: number;
}

export function Sparkline({ values, label, width = 80, height = 22 }: Props) {
  const path = sparkPath(values, width, height);
  if (!path) return null;
  return (
    <svg className="el-spark" width={width} height={height} viewBox={`0 0 ${width} ${height}`} role="img" aria-label={label}>
      <path d={path} fill="none" stroke="currentColor" strokeWidth="1.5" strokeLinejoin="round" />
    </svg>
  );
}
