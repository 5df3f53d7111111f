# The bucket, and the least that a candidate and a reader may do with the prefix `leaderrun/` in it. Afterwards run
# `leaderctl --store s3://BUCKET/leaderrun store init --new` once: it tries whether the server honours conditions.

variable "bucket" {
  type = string
}

# No versioning: each renewal would leave an old version behind. No lifecycle rules: objects stay.
resource "aws_s3_bucket" "leaderrun" {
  bucket = var.bucket

  # A bucket that is deleted under a leader forgets who leads.
  lifecycle {
    prevent_destroy = true
  }
}

resource "aws_iam_policy" "leaderrun_candidate" {
  name = "leaderrun-candidate-${var.bucket}"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect = "Allow"
        Action = [
          "s3:GetObject",
          "s3:PutObject",
        ]
        Resource = "${aws_s3_bucket.leaderrun.arn}/leaderrun/*"
      },
      {
        # Without it, S3 does not report that an object is absent.
        Effect = "Allow"
        Action = [
          "s3:ListBucket",
        ]
        Resource = aws_s3_bucket.leaderrun.arn
      },
    ]
  })
}

resource "aws_iam_policy" "leaderrun_reader" {
  name = "leaderrun-reader-${var.bucket}"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect = "Allow"
        Action = [
          "s3:GetObject",
        ]
        Resource = "${aws_s3_bucket.leaderrun.arn}/leaderrun/*"
      },
      {
        Effect = "Allow"
        Action = [
          "s3:ListBucket",
        ]
        Resource = aws_s3_bucket.leaderrun.arn
      },
    ]
  })
}
