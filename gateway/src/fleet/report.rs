//! What a phone says about itself in a heartbeat: its battery, its temperature, its network, its screen.

use std::ops::RangeInclusive;

/// In percent.
const BATTERY: RangeInclusive<f64> = 0.0..=100.0;
/// In °C. Sensors that are not there say 0 or thousands; no phone lives outside of this.
const TEMPERATURE: RangeInclusive<f64> = -40.0..=120.0;

/// What a phone reports. What it can't tell it leaves out.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PhoneReport {
    /// Its battery's charge, in percent.
    pub battery: Option<f64>,
    /// Its battery is being charged.
    pub charging: Option<bool>,
    /// The battery's temperature, in °C.
    pub temperature: Option<f64>,
    /// Its network is paid for by volume.
    pub metered: Option<bool>,
    /// Somebody looks at it.
    pub screen_on: Option<bool>,
}

/// A value that no phone has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// The battery.
    #[error("battery must be from 0 to 100, in percent")]
    Battery,
    /// The temperature.
    #[error("temperature must be from -40 to 120, in degrees Celsius")]
    Temperature,
}

impl PhoneReport {
    /// The same, if every value is one that a phone can have.
    ///
    /// # Errors
    /// The first value that is not.
    pub fn checked(self) -> Result<Self, ReportError> {
        if self.battery.is_some_and(|battery| !BATTERY.contains(&battery)) {
            return Err(ReportError::Battery);
        }
        if self.temperature.is_some_and(|degrees| !TEMPERATURE.contains(&degrees)) {
            return Err(ReportError::Temperature);
        }
        Ok(self)
    }
}

/// A report, and when it came.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reported {
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// What it said.
    pub report: PhoneReport,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_holds_what_a_phone_can_have_and_nothing_else() {
        let with = |battery, temperature| PhoneReport { battery, temperature, ..PhoneReport::default() }.checked();
        assert_eq!(with(None, None), Ok(PhoneReport::default()));
        assert!(with(Some(0.0), Some(-40.0)).is_ok() && with(Some(100.0), Some(120.0)).is_ok());
        for battery in [-0.1, 100.1, f64::NAN, f64::INFINITY] {
            assert_eq!(with(Some(battery), None), Err(ReportError::Battery));
        }
        for degrees in [-273.0, 3_000.0, f64::NAN] {
            assert_eq!(with(None, Some(degrees)), Err(ReportError::Temperature));
        }
    }
}
