// The curve of a sparkline.

/** The path of the curve, with a gap where a value is missing. */
export function sparkPath(values: readonly (number | null)[], width: number, height: number): string {
  const finite = values.filter((value): value is number => value !== null && Number.isFinite(value));
  if (finite.length < 2) return "";
  const low = Math.min(...finite);
  const span = Math.max(...finite) - low || 1;
  let pen = "M";
  let path = "";
  values.forEach((value, index) => {
    if (value === null || !Number.isFinite(value)) {
      pen = "M";
      return;
    }
    const x = (index / (values.length - 1)) * width;
    const y = 1 + (1 - (value - low) / span) * (height - 2);
    path += `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
    pen = "L";
  });
  return path;
}
