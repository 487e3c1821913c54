// What took how long from the last step of an attempt to the first step of the next one: a bar, and its parts in words.
import type { Recovery } from "../api/types.ts";
import { duration } from "../format/times.ts";

export function RecoveryBar({ recovery }: { recovery: Recovery }) {
  const parts = recovery.parts.filter(({ seconds }) => seconds > 0);
  return (
    <span className="el-recovery">
      <span className="el-muted">first step after {duration(recovery.seconds)}</span>
      <span className="el-recovery-bar" aria-hidden="true">
        {parts.map(({ name, seconds }) => (
          <i key={name} className={`el-recovery-${name}`} style={{ flexGrow: seconds }} />
        ))}
      </span>
      <span className="el-legend">
        {parts.map(({ name, words, seconds }) => (
          <span key={name}>
            <i className={`el-recovery-${name}`} aria-hidden="true" />
            <span className="el-muted">
              {words} {duration(seconds)}
            </span>
          </span>
        ))}
      </span>
    </span>
  );
}
