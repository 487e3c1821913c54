// What took how long from the last step of an attempt to the first step of the next one: a bar, and its longest parts.
import type { Recovery } from "../api/types.ts";
import { duration } from "../format/times.ts";

export function RecoveryBar({ recovery }: { recovery: Recovery }) {
  const parts = recovery.parts.filter(({ seconds }) => seconds > 0);
  const all = recovery.parts.map(({ words, seconds }) => `${words} ${duration(seconds)}`).join(", ");
  return (
    <span className="el-recovery" title={all}>
      <span className="el-recovery-bar" aria-hidden="true">
        {parts.map(({ name, seconds }) => (
          <i key={name} className={`el-recovery-${name}`} style={{ flexGrow: seconds }} />
        ))}
      </span>
      <span className="el-muted">
        first step after {duration(recovery.seconds)}: {longest(recovery)}
      </span>
    </span>
  );
}

/** The parts that take a tenth of the time or more. */
export function longest({ seconds, parts }: Recovery): string {
  return parts
    .filter((part) => part.seconds > 0 && part.seconds >= seconds / 10)
    .map((part) => `${part.words} ${duration(part.seconds)}`)
    .join(", ");
}
