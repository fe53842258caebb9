//! RFC 3339 instants as signed nanoseconds since the Unix epoch, both ways, exactly.

const NANOS_PER_SECOND: i128 = 1_000_000_000;

/// Days from 1970-01-01 to a date of the proleptic Gregorian calendar.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March here, so that the leap day is the last of its year.
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let march_based = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march_based + 2) / 5 + 1;
    let month = (march_based + 2) % 12 + 1;
    let year = year + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Exactly `width` decimal digits at the front of `text`, and the rest.
fn digits(text: &str, width: usize) -> Option<(i64, &str)> {
    let (head, rest) = text.split_at_checked(width)?;
    if !head.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some((head.parse().ok()?, rest))
}

fn field(text: &str, width: usize, low: i64, high: i64) -> Option<(i64, &str)> {
    digits(text, width).filter(|(value, _)| (low..=high).contains(value))
}

/// Reads a complete RFC 3339 date and time with its offset; None when it is not one, or not within the range of an i64.
pub fn parse(text: &str) -> Option<i64> {
    let (year, rest) = field(text, 4, 0, 9_999)?;
    let (month, rest) = field(rest.strip_prefix('-')?, 2, 1, 12)?;
    let (day, rest) = field(rest.strip_prefix('-')?, 2, 1, days_in_month(year, month))?;
    let (hour, rest) = field(rest.strip_prefix(['T', 't'])?, 2, 0, 23)?;
    let (minute, rest) = field(rest.strip_prefix(':')?, 2, 0, 59)?;
    // A leap second has no instant of its own in Unix time, so :60 is not accepted.
    let (second, mut rest) = field(rest.strip_prefix(':')?, 2, 0, 59)?;
    let mut nanos = 0_i128;
    if let Some(fraction) = rest.strip_prefix('.') {
        let width = fraction.bytes().take_while(u8::is_ascii_digit).count();
        let (digits, after) = fraction.split_at_checked(width)?;
        if !(1..=9).contains(&width) {
            return None;
        }
        nanos = format!("{digits:0<9}").parse().ok()?;
        rest = after;
    }
    let offset_minutes = if matches!(rest, "Z" | "z") {
        0
    } else {
        let sign = match rest.as_bytes().first()? {
            b'+' => 1,
            b'-' => -1,
            _ => return None,
        };
        let (hours, rest) = field(rest.get(1..)?, 2, 0, 23)?;
        let (minutes, rest) = field(rest.strip_prefix(':')?, 2, 0, 59)?;
        if !rest.is_empty() {
            return None;
        }
        sign * (hours * 60 + minutes)
    };
    let minutes = (days_from_civil(year, month, day) * 24 + hour) * 60 + minute - offset_minutes;
    let seconds = i128::from(minutes * 60 + second);
    i64::try_from(seconds * NANOS_PER_SECOND + nanos).ok()
}

/// The instant in UTC, with 0, 3, 6 or 9 fraction digits as its nanoseconds need.
pub fn print(nanos: i64) -> String {
    let seconds = nanos.div_euclid(1_000_000_000);
    let fraction = nanos.rem_euclid(1_000_000_000);
    let (year, month, day) = civil_from_days(seconds.div_euclid(86_400));
    let of_day = seconds.rem_euclid(86_400);
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    let mut text = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}");
    if fraction != 0 {
        let all = format!("{fraction:09}");
        let kept = if fraction % 1_000_000 == 0 {
            3
        } else if fraction % 1_000 == 0 {
            6
        } else {
            9
        };
        text.push('.');
        text.extend(all.chars().take(kept));
    }
    text.push('Z');
    text
}
