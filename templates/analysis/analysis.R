# The first figure of this experiment, computed from its tables, and a mixed model to start from.
# Run it in this folder: Rscript analysis.R

data <- read.csv(paste0(@TABLE@, ".csv"), check.names = FALSE, na.strings = "", encoding = "UTF-8")
@SELECT@data$y <- as.numeric(@VALUE@)
data <- data[!is.na(data$y), ]
data$cluster <- factor(data[[@CLUSTER@]]) # observations of one are not independent
data$condition <- factor(data$condition, levels = unique(data$condition))

cat(@FIGURE@, "\n")
print(aggregate(y ~ condition, data, mean))

# y ~ condition + (1 | cluster). For a rate, glmer(…, family = binomial) is the usual choice.
if (nlevels(data$condition) > 1 && requireNamespace("lme4", quietly = TRUE)) {
  print(summary(lme4::lmer(y ~ condition + (1 | cluster), data)))
}
