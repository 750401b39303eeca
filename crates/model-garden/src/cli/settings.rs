//! The settings of a recipe as flags, made from the one list of them that there is.

use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches};
use garden_train::FIELDS;
use serde_json::Value;

/// Settings that were given, by name, in the order of the list.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub values: Vec<(String, Value)>,
}

impl FromArgMatches for Settings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Settings, Error> {
        let mut settings = Settings::default();
        settings.update_from_arg_matches(matches)?;
        Ok(settings)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        for field in FIELDS {
            let given = matches
                .try_get_one::<String>(field.name)
                .map_err(|error| Error::raw(ErrorKind::ArgumentConflict, error.to_string()))?;
            self.values.extend(given.map(|value| (field.name.to_string(), Value::String(value.clone()))));
        }
        Ok(())
    }
}

impl Args for Settings {
    fn augment_args(command: Command) -> Command {
        command.args(FIELDS.iter().map(|field| {
            let argument = Arg::new(field.name)
                .long(field.name)
                .aliases(field.aliases)
                .help(field.help)
                .help_heading(field.heading);
            match field.value.is_empty() {
                false => argument.value_name(field.value),
                // A switch is on when it is named, and can be turned off where a recipe file turns it on.
                true => {
                    argument.value_name("true|false").num_args(0..=1).require_equals(true).default_missing_value("true")
                }
            }
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Settings::augment_args(command)
    }
}
